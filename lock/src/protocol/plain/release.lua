-- Ends one hold of a plain lock, or takes back its ticket, and hands the lock on to the first in line.
--
-- KEYS[1]  the lock: a string, the id of its holder
-- KEYS[2]  the counter of its fencing tokens: a decimal string
-- KEYS[3]  the line: a sorted set of tickets by place
-- ARGV[1]  the hold
-- ARGV[2]  how grants are published: P, S or C, see the grant step; absent = P
-- ARGV[3]  how long to keep the counter, in milliseconds; absent = 600000
-- ARGV[4]  the ticket, if it may be in line; absent if not
--
-- Reply, one integer:  0  the hold was not there: released before, expired, or forced
--                      1  it was there, and the lock is free
--                      2  it was there, and the lock has its next holder
--
-- May be repeated: the second time finds nothing and changes nothing.
--
-- Nothing that goes wrong with the line or a message may hide that the hold is gone: all of that goes through pcall.
-- Waiters who miss it look again by themselves.
--
-- A command that compares and deletes by itself, which newer servers have, would save nothing: the line is in the same script.

if ARGV[4] then
  redis.pcall('ZREM', KEYS[3], ARGV[4])
end
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
redis.call('DEL', KEYS[1])
if redis.pcall('EXISTS', KEYS[3]) ~= 1 then
  return 1
end

