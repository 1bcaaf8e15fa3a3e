-- Takes the permits that were reserved by a grant.
--
-- KEYS[1]  the reservations, see the count step
-- KEYS[2]  what became of the request
-- ARGV[1]  the hold, which is the request
-- ARGV[2]  its permits
-- ARGV[3]  how long the answer is remembered, in milliseconds
--
-- Reply: {ms} they are taken; 0 if the reservation is over.
--
-- May be repeated for a minute: what it has taken is remembered under its id.

local time = redis.call('TIME')
local member = ARGV[1] .. '=' .. ARGV[2]
local score = redis.call('ZSCORE', KEYS[1], member)
if score and tonumber(score) > time[1] * 1000 + math.floor(time[2] / 1000) then
  redis.call('ZREM', KEYS[1], member)
  redis.call('SET', KEYS[2], ARGV[2], 'PX', 60000)
  return { tonumber(ARGV[3]) }
end
local known = redis.call('GET', KEYS[2])
if known == ARGV[2] then
  redis.call('PEXPIRE', KEYS[2], 60000)
  return { tonumber(ARGV[3]) }
end
return 0
