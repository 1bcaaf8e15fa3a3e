-- Confirms a granted hold of a plain lock: it has its whole lease from now on.
--
-- KEYS[1]  the lock: a string, the id of its holder
-- KEYS[2]  the counter of its fencing tokens: a decimal string
-- ARGV[1]  the hold
-- ARGV[2]  its lease from now on, in milliseconds
-- ARGV[3]  how long to keep the counter, in milliseconds
--
-- Reply: {token, lease in ms}; 0 if the hold is gone. The token is of the latest grant, which the message may not be.
--
-- May be repeated: a lease only ever grows, and a hold that is gone is never created again. Something is written in any case:
-- `WAIT` may follow, and newer servers confirm at once what wrote nothing.

if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
return held_by_us(math.max(redis.call('PTTL', KEYS[1]), tonumber(ARGV[2])))
