-- Extends the timeout key of a hold whose field was there a moment ago, for a slot that is migrating.
--
-- KEYS[1]  the timeout key
-- ARGV[1]  the lease of the hold from now on, in milliseconds
--
-- Reply: {1}
--
-- May be repeated: a lease only ever grows. A key without its field means nothing, and ends with the lease.

redis.call('SET', KEYS[1], '1', 'PX', math.max(redis.call('PTTL', KEYS[1]), tonumber(ARGV[1])))
return { 1 }
