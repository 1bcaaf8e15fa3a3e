-- Takes a read-write lock by its own key only, without the counter of its fencing tokens, a timeout key or a place in line. For a
-- slot that is migrating, where keys of which some do not exist cannot be used together. There a lock that is asked for to read is
-- held to write: that takes a single key, and excludes more than it must, never less.
--
-- KEYS[1]  the lock: a hash of mode -> read or write, and holder -> count
-- ARGV[1]  the hold: an id nobody ever used for another acquisition
-- ARGV[2]  the lease, in milliseconds
-- ARGV[3]  the highest fencing token that the client has seen
--
-- Reply: {token, ms, 0}  held by this hold, for so long from now
--        0               held by another, and the key has no expiry
--        -1 - n          held by another for n milliseconds more
--
-- May be repeated: the hold is the same, its lease is not extended, and its token only grows.
--
-- The token is the time in microseconds, and beyond what the client has seen. The counter, which stays as it is, takes the
-- time as its floor as well, so tokens go on growing when it is back.

local ttl = redis.call('PTTL', KEYS[1])
local time = redis.call('TIME')
local token = math.max(tonumber(ARGV[3]) + 1, time[1] * 1000000 + time[2])
local known = ttl == -2 and {} or redis.call('HMGET', KEYS[1], 'mode', ARGV[1], ARGV[1] .. ':write')
local mode, reading, writing = known[1], known[2], known[3]
if reading then
  -- Since before the slot migrated. What cannot be found out about it is given up, and taken anew.
  local prefix = string.find(KEYS[1], '{', 1, true) and KEYS[1] or '{' .. KEYS[1] .. '}'
  local left = redis.pcall('PTTL', prefix .. ':' .. ARGV[1] .. ':rwlock_timeout:1')
  if type(left) == 'number' and left > 0 then
    redis.call('PEXPIRE', KEYS[1], math.max(ttl, left))
    return { token, left, 0 }
  end
  redis.call('HDEL', KEYS[1], ARGV[1])
  if redis.call('HLEN', KEYS[1]) == 1 then
    redis.call('HDEL', KEYS[1], 'mode')
    ttl = -2
  end
end
if ttl == -2 then
  redis.call('HSET', KEYS[1], 'mode', 'write', ARGV[1] .. ':write', '1')
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return { token, tonumber(ARGV[2]), 0 }
end
if writing then
  -- Writes in any case: `WAIT` may follow, and newer servers confirm at once what wrote nothing.
  ttl = ttl < 0 and tonumber(ARGV[2]) or math.max(ttl, 1)
  redis.call('PEXPIRE', KEYS[1], ttl)
  return { token, ttl, 0 }
end
if mode ~= 'read' and mode ~= 'write' then
  local refused = foreign_data()
  if refused then
    return refused
  end
end
if ttl == -1 then
  return 0
end
return -1 - ttl
