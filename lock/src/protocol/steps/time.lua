-- The step of all scripts that ask the server for its time: the reply of TIME as text, in microseconds. It stays text as long as
-- it can: numbers of 16 digits are made of text, and text of them, by the slowest functions of Lua.

local function micros(time)
  local text = time[2]
  return time[1] .. (#text == 6 and text or string.format('%06d', text))
end

