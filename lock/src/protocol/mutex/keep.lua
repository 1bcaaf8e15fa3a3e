-- Ends one hold whose lock stays taken for a while, by nobody who acts: it was asked to be held for at least so long.
--
-- KEYS[1]  the lock: a hash of holder -> count
-- KEYS[2]  with a ticket: the line, a sorted set of tickets by place
-- ARGV[1]  the hold
-- ARGV[2]  how long the lock stays taken, in milliseconds
-- ARGV[3]  1 if that may be longer than its lease is now, 0 if not: the hold was lost
-- ARGV[4]  how to publish: P, S or C, see the grant step
-- ARGV[5]  the ticket, if it may be in line; '' if not
-- ARGV[6]  with Redisson: its channel for releases, on which those who wait are told to look how long it is now; '' otherwise
--
-- Reply, one integer:   0  the hold was not there: released before, expired, or forced
--                     - n  the lock stays taken for n milliseconds more
--
-- May be repeated: the hold is renamed to `<hold>:kept`, which neither a renewal nor a request of it finds that runs late, and the
-- second time finds that and changes nothing. The new field comes first: a hash without fields would be gone, with its expiry.

local kept = ARGV[1] .. ':kept'
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then
  return redis.call('HEXISTS', KEYS[1], kept) == 1 and -math.max(redis.call('PTTL', KEYS[1]), 1) or 0
end
local ttl, left = redis.call('PTTL', KEYS[1]), tonumber(ARGV[2])
if ARGV[3] == '0' and ttl >= 0 then
  left = math.max(math.min(left, ttl), 1)
end
redis.call('HSET', KEYS[1], kept, '1')
redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('PEXPIRE', KEYS[1], left)
-- Nothing that goes wrong with the line or a message may hide that.
if KEYS[2] and ARGV[5] ~= '' then
  redis.pcall('ZREM', KEYS[2], ARGV[5])
end
if ARGV[6] ~= '' then
  redis.pcall(ARGV[4] == 'S' and 'SPUBLISH' or 'PUBLISH', ARGV[6], '0')
end
return -left
