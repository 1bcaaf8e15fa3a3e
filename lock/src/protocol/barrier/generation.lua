-- The step of the scripts of a barrier that end a generation.
--
-- KEYS[1]  the barrier, a hash: gen  the present generation, a number that only grows
--                               first  the first one since the hash is there
--                               parties  how many pass together
--                               r:<generation>  how one of the latest 16 ended: `ok <leader>` or `broken`
-- KEYS[2]  its parties, a sorted set: a:<party>  has arrived in the present generation; until when, in ms
--                                     g:<party>  the generation that it arrived in, also of the latest 16
--                                     t:<party>  it was withdrawn, at minus the time in ms
--
-- Generations begin with the time in microseconds, so they go on growing when the hash is lost, and are told from times in
-- milliseconds by their size.

local call = redis.call
local time = call('TIME')
local us = time[1] * 1000000 + time[2]
local ms = math.floor(us / 1000)

local function text(number)
  return string.format('%.0f', number)
end

-- Ends the present generation, and tells those who wait.
local function end_generation(gen, how, mode)
  call('HSET', KEYS[1], 'r:' .. text(gen), how, 'gen', text(gen + 1))
  call('HDEL', KEYS[1], 'r:' .. text(gen - 16))
  call('ZREMRANGEBYSCORE', KEYS[2], '0', '100000000000000')
  call('ZREMRANGEBYSCORE', KEYS[2], '(100000000000000', text(gen - 16))
  redis.pcall(mode == 'S' and 'SPUBLISH' or 'PUBLISH', KEYS[1], 'B ' .. text(gen))
end

-- Until when the first of those that have arrived lives, in ms; nil if nobody has arrived.
local function first_end()
  local first = call('ZRANGEBYSCORE', KEYS[2], '0', '100000000000000', 'WITHSCORES', 'LIMIT', 0, 1)
  return tonumber(first[2])
end

