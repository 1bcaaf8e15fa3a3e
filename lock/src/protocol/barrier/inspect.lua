-- Tells who has arrived at a barrier. Changes nothing.
--
-- KEYS[1]  the parties of the barrier
--
-- Reply: the first hundred that have arrived, each followed by the time in ms that it lives if it is not renewed.

local time = redis.call('TIME')
local ms = time[1] * 1000 + math.floor(time[2] / 1000)
local found = redis.call('ZRANGEBYSCORE', KEYS[1], '0', '100000000000000', 'WITHSCORES', 'LIMIT', 0, 100)
local parties = {}
for i = 1, #found, 2 do
  parties[i] = string.sub(found[i], 3)
  parties[i + 1] = math.max(tonumber(found[i + 1]) - ms, 0)
end
return parties
