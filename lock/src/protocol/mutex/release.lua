-- Ends one hold, or takes back its ticket, and hands the lock on to the first in line.
--
-- KEYS[1]  the lock: a hash of holder -> count
-- KEYS[2]  the counter of its fencing tokens: a decimal string
-- KEYS[3]  the line: a sorted set of tickets by place
-- ARGV[1]  the hold
-- ARGV[2]  how grants are published: P, S or C, see the grant step; absent = P
-- ARGV[3]  how long to keep the counter, in milliseconds; 0 = for ever, as Redisson expects; absent = 600000
-- ARGV[4]  the ticket, if it may be in line; '' or absent if not
-- ARGV[5]  with Redisson: its channel for releases
-- ARGV[6]  with Redisson, for a release that leaves the lock to whoever comes first, if Redisson waits: how many of ours
--          listen on that channel without a ticket; '' for one that grants
--
-- Reply, one integer:  0  the hold was not there: released before, expired, or forced
--                      1  it was there, and the lock is free
--                      2  it was there, and the lock has its next holder
--
-- May be repeated: the second time finds nothing and changes nothing.
--
-- Nothing that goes wrong with the line or a message may hide that the hold is gone: all of that goes through pcall.
-- Waiters who miss it look again by themselves. So does EXISTS: a source of a migrating slot answers for a key that is gone
-- that it is not local. It counts the line, and the lock where it has another hold, which a failover may bring back: both are
-- there while that one holds it, and where the lock is there alone the grant step finds no ticket.
--
-- The code of a release with nobody in line comes first: every function that is made before it costs time, and so does every
-- argument, of which the last ones may be left out.

if ARGV[4] and ARGV[4] ~= '' then
  redis.pcall('ZREM', KEYS[3], ARGV[4])
end
if redis.call('HDEL', KEYS[1], ARGV[1]) == 0 then
  return 0
end
if redis.pcall('EXISTS', KEYS[1], KEYS[3]) ~= 1 then
  if ARGV[5] then
    redis.pcall(ARGV[2] == 'S' and 'SPUBLISH' or 'PUBLISH', ARGV[5], '0')
  end
  return 1
end

