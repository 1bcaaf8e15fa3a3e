-- Takes back the permits that a request has taken, without the line. For a slot that is migrating, where the keys of a call must
-- exist: these two do if it has taken any.
--
-- KEYS[1]  the free permits: a decimal string
-- KEYS[2]  what became of the request
--
-- Reply: 1 if it had permits, 0 if not.
--
-- May be repeated: what was given back is remembered for a minute.

local known = tonumber(redis.call('GET', KEYS[2])) or 0
redis.call('SET', KEYS[2], 0, 'PX', 60000)
if known == 0 then
  return 0
end
redis.call('INCRBY', KEYS[1], known)
return 1
