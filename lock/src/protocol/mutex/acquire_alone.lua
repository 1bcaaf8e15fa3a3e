-- Takes a lock by its own key only, without the counter of its fencing tokens. For a slot that is migrating, where two
-- keys that do not exist yet cannot be used together: the source answers ASK, the target TRYAGAIN, until it is over.
--
-- KEYS[1]  the lock: a hash of holder -> count
-- ARGV[1]  the hold: an id nobody ever used for another acquisition
-- ARGV[2]  the lease, in milliseconds
-- ARGV[3]  the highest fencing token that the client has seen
--
-- Reply, one integer:  > 0      held by this hold, and this is its token
--                      0        held by another, and the key has no expiry
--                      -1 - n   held by another for n milliseconds more
--
-- May be repeated: the hold is the same, its lease counts from now on, and its token only grows.
--
-- The token is the time in microseconds, and beyond what the client has seen. The counter, which stays as it is, takes the
-- time as its floor as well, so tokens go on growing when it is back.

local lease = tonumber(ARGV[2])
local mine = redis.call('HEXISTS', KEYS[1], ARGV[1])
local ttl = redis.call('PTTL', KEYS[1])
if mine == 0 and ttl ~= -2 then
  -- Held by others, if the fields are holders: an id with a colon and a count, beside the mode of a read-write lock.
  local fields, holders = redis.call('HSCAN', KEYS[1], 0)[2], 0
  for i = 1, #fields, 2 do
    local field, value = fields[i], fields[i + 1]
    if string.find(field, '.:.') and string.find(value, '^%d+$') then
      holders = holders + 1
    elseif field ~= 'mode' or value ~= 'read' and value ~= 'write' then
      holders = -1
      break
    end
  end
  if holders <= 0 and #fields > 0 then
    return redis.error_reply('WRONGTYPE the key holds a hash whose fields are not the holders of a lock')
  end
  if ttl == -1 then
    return 0
  end
  return -1 - ttl
end
local time = redis.call('TIME')
if mine == 0 then
  redis.call('HSET', KEYS[1], ARGV[1], 1)
end
-- Writes in any case: `WAIT` may follow, and newer servers confirm at once what wrote nothing.
redis.call('PEXPIRE', KEYS[1], math.max(ttl, lease))
return math.max(tonumber(ARGV[3]) + 1, time[1] * 1000000 + time[2])
