-- Counts the permits of a semaphore. Changes nothing.
--
-- KEYS[1]  the free permits: a decimal string
-- KEYS[2]  the permits that are taken: a sorted set of 16 bytes -> time of expiry in milliseconds
-- KEYS[3]  the capacity: a decimal string
-- ARGV[1]  the capacity that the caller believes in, for a semaphore that the server does not know
--
-- Reply: {free, capacity}. Permits that have expired are free. The free ones may be fewer than none.

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local stored = redis.call('GET', KEYS[1])
if stored and not string.find(stored, '^%-?%d+$') then
  return redis.error_reply('WRONGTYPE the key holds a string that is not a number of permits')
end
local taken = redis.call('ZCARD', KEYS[2])
local live = redis.call('ZCOUNT', KEYS[2], '(' .. string.format('%.0f', now), '+inf')
local known = redis.pcall('GET', KEYS[3])
known = type(known) ~= 'table' and tonumber(known) or nil
local sum = stored and tonumber(stored) + taken
local capacity = known or sum or tonumber(ARGV[1])
if sum and sum > capacity then
  capacity = sum
end
return { capacity - live, capacity }
