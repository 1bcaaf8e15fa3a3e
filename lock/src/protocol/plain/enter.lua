-- The step that says what a hold of a plain mutex is, for the grant step.
--
-- KEYS[1]  the lock: a string, the id of its holder, absent

local word = 'GP '

-- Returns 1, or the error.
local function enter(hold, lease)
  local written = redis.pcall('SET', KEYS[1], hold, 'PX', lease)
  return written.ok and 1 or written
end

local function leave()
  redis.call('DEL', KEYS[1])
end

