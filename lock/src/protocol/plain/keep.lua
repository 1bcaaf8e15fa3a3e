-- Ends one hold of a plain lock which stays taken for a while, by nobody who acts: it was asked to be held for at least so long.
--
-- KEYS[1]  the lock: a string, the id of its holder
-- KEYS[2]  with a ticket: the line, a sorted set of tickets by place
-- ARGV[1]  the hold
-- ARGV[2]  how long the lock stays taken, in milliseconds
-- ARGV[3]  1 if that may be longer than its lease is now, 0 if not: the hold was lost
-- ARGV[4]  with a ticket: the ticket, which may be in line
--
-- Reply, one integer:   0  the hold was not there: released before, expired, or forced
--                     - n  the lock stays taken for n milliseconds more
--
-- May be repeated: the hold is renamed to `<hold>:kept`, which neither a renewal nor a request of it finds that runs late, and the
-- second time finds that and changes nothing.

local holder, kept = redis.call('GET', KEYS[1]), ARGV[1] .. ':kept'
if holder ~= ARGV[1] then
  return holder == kept and -math.max(redis.call('PTTL', KEYS[1]), 1) or 0
end
local ttl, left = redis.call('PTTL', KEYS[1]), tonumber(ARGV[2])
if ARGV[3] == '0' and ttl >= 0 then
  left = math.max(math.min(left, ttl), 1)
end
redis.call('SET', KEYS[1], kept, 'PX', left)
-- Nothing that goes wrong with the line may hide that.
if KEYS[2] then
  redis.pcall('ZREM', KEYS[2], ARGV[4])
end
return -left
