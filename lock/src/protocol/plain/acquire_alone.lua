-- Takes a plain lock by its own key only, without the counter of its fencing tokens or a place in line. For a slot that is
-- migrating, where keys of which some do not exist cannot be used together.
--
-- KEYS[1]  the lock: a string, the id of its holder
-- ARGV[1]  the hold: an id nobody ever used for another acquisition
-- ARGV[2]  the lease, in milliseconds
-- ARGV[3]  the highest fencing token that the client has seen
--
-- Reply: {token, ms}  held by this hold, for so long from now; the token is one, whatever block was asked for
--        -1 - n       held by another for n milliseconds more, or to be asked for again then
--
-- May be repeated: the hold is the same, its lease is not extended, and its token only grows.
--
-- The token is the time in microseconds, and beyond what the client has seen, as for a mutex.

local holder = redis.call('GET', KEYS[1])
local ttl = redis.call('PTTL', KEYS[1])
local time = redis.call('TIME')
local token = math.max(tonumber(ARGV[3]) + 1, time[1] * 1000000 + time[2])
if not holder then
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
  return { token, tonumber(ARGV[2]) }
end
if holder == ARGV[1] then
  -- Writes in any case: `WAIT` may follow, and newer servers confirm at once what wrote nothing.
  ttl = ttl < 0 and tonumber(ARGV[2]) or math.max(ttl, 1)
  redis.call('PEXPIRE', KEYS[1], ttl)
  return { token, ttl }
end
return -1 - poll_within(holder, ttl, 0)
