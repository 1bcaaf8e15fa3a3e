-- Ends one hold of a fair lock, or takes back its ticket, and hands the lock on to the first who waits.
--
-- KEYS[1]  the lock: a hash of holder -> count
-- KEYS[2]  the counter of its fencing tokens: a decimal string
-- KEYS[3]  the line: a sorted set of tickets by place, with Redisson also of the fences between their runs
-- KEYS[4]  with Redisson: its queue, a list of holders
-- KEYS[5]  with Redisson: the times when it removes them from the queue, a sorted set
-- ARGV[1]  the hold
-- ARGV[2]  how grants are published: P, S or C, see the grant step; absent = P
-- ARGV[3]  how long to keep the counter, in milliseconds; 0 = for ever, as Redisson expects; absent = 600000
-- ARGV[4]  the ticket, if it may be in line; absent if not
--
-- Reply, one integer:  0  the hold was not there: released before, expired, or forced
--                      1  it was there, and the lock is free
--                      2  it was there, and the lock has its next holder
--
-- May be repeated: the second time finds nothing and changes nothing.
--
-- A process that takes a ticket back may have been told that the lock is free: then the next one is told.
--
-- Nothing that goes wrong with the line or a message may hide that the hold is gone: all of that goes through pcall.
-- Waiters who miss it look again by themselves. So does EXISTS: a source of a migrating slot answers for a key that is gone
-- that it is not local.
--
-- The code of a release with nobody in line comes first: every function that is made before it costs time, and so does every
-- argument, of which the last ones may be left out.

if ARGV[4] and not KEYS[4] then
  redis.pcall('ZREM', KEYS[3], ARGV[4])
end
local ended = redis.call('HDEL', KEYS[1], ARGV[1])
if ended == 0 and not ARGV[4] then
  return 0
end
local waiting
if KEYS[4] then
  waiting = redis.pcall('EXISTS', KEYS[3], KEYS[4])
else
  waiting = redis.pcall('EXISTS', KEYS[3])
end
if type(waiting) ~= 'number' or waiting == 0 then
  return ended
end

