-- Removes a read-write lock, whoever holds it, and leaves it to those in line.
--
-- KEYS[1]  the lock: a hash of mode -> read or write, and holder -> count
-- KEYS[2]  the counter of its fencing tokens: a decimal string
-- KEYS[3]  the line: a sorted set of tickets by place
-- ARGV[1]  with Redisson: its channel for releases; '' otherwise
-- ARGV[2]  how grants are published: P, S or C, see the serve step
-- ARGV[3]  how long to keep the counter, in milliseconds; 0 = for ever, as Redisson expects
--
-- Reply, one integer: 1 it was held, 0 it was not.
--
-- May be repeated, with one reserve: somebody may have taken the lock in between, and loses it then. Removing whoever
-- is there is what was asked for.
--
-- The timeout keys of readers mean nothing without their fields, and end with their leases.

local fields, foreign = count_fields()
if foreign then
  return foreign
end
if fields == 0 then
  return 0
end
local ttl, mode = -2, nil
