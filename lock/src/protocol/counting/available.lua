-- Counts the free permits of a semaphore without owners. Changes nothing.
--
-- KEYS[1]  the free permits: a decimal string
-- KEYS[2]  the reservations, see the count step
-- ARGV[1]  how many permits are free if nobody ever used it
--
-- Reply: how many are free, those of reservations that have expired too; fewer than none if Redisson took more away.

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local stored = redis.call('GET', KEYS[1])
if stored and not string.find(stored, '^%-?%d+$') then
  return redis.error_reply('WRONGTYPE the key holds a string that is not a number of permits')
end
local free = tonumber(stored or ARGV[1])
for _, member in ipairs(redis.pcall('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, 1000)) do
  free = free + tonumber(string.match(member, '=(%d+)$') or 0)
end
return free
