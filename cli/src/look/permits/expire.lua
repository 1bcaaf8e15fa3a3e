-- Lets permits of a semaphore expire now. The next request for one, of ours or of Redisson, takes them back.
--
-- KEYS[1]  the permits that are taken: a sorted set of 16 bytes -> time of expiry in milliseconds
-- ARGV[1]  what they begin with; '' for all
--
-- Reply: how many of them were taken. May be repeated: then they have expired.

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local past = string.format('%.0f', now - 1)
local permits = redis.call('ZRANGEBYSCORE', KEYS[1], string.format('(%.0f', now), '+inf')
local expired = 0
for _, permit in ipairs(permits) do
  if string.sub(permit, 1, #ARGV[1]) == ARGV[1] then
    redis.call('ZADD', KEYS[1], 'XX', past, permit)
    expired = expired + 1
  end
end
return expired
