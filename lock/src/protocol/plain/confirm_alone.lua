-- Confirms a granted hold by the lock's own key only, for a slot that is migrating.
--
-- KEYS[1]  the lock: a string, the id of its holder
-- ARGV[1]  the hold
-- ARGV[2]  its lease from now on, in milliseconds
-- ARGV[3]  the highest fencing token that the client has seen
--
-- Reply: {token, lease in ms}; 0 if the hold is gone. The token is as the one of `acquire_alone`.
--
-- May be repeated: a lease only ever grows, and a hold that is gone is never created again.

if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
local lease = math.max(redis.call('PTTL', KEYS[1]), tonumber(ARGV[2]))
redis.call('PEXPIRE', KEYS[1], lease)
local time = redis.call('TIME')
return { math.max(tonumber(ARGV[3]) + 1, time[1] * 1000000 + time[2]), lease }
