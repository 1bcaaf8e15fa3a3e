-- Extends the lease of a hold that reads by the lock's own key only, for a slot that is migrating. Its timeout key is extended by a
-- call of its own, which follows.
--
-- KEYS[1]  the lock: a hash of mode -> read or write, and holder -> count
-- ARGV[1]  the hold that is believed to be there
-- ARGV[2]  its lease from now on, in milliseconds
--
-- Reply: {1} the hold is there, {0} it is gone.
--
-- May be repeated: a lease only ever grows, and a hold that is gone is never created again. Something is written in any case.

local known = redis.pcall('HMGET', KEYS[1], ARGV[1], ARGV[1] .. ':write')
if known.err and not string.find(known.err, 'WRONGTYPE', 1, true) then
  return known
end
if not known[1] and not known[2] then
  return { 0 }
end
redis.call('PEXPIRE', KEYS[1], math.max(redis.call('PTTL', KEYS[1]), tonumber(ARGV[2])))
return { 1 }
