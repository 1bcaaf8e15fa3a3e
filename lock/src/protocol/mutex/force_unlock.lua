-- Removes a lock, whoever holds it, and hands it on to the first in line.
--
-- KEYS[1]  the lock: a hash of holder -> count
-- KEYS[2]  the counter of its fencing tokens: a decimal string
-- KEYS[3]  the line: a sorted set of tickets by place; with KEYS[2] absent where only the lock's own key can be used: then
--          nothing is granted, and those who wait find it free at their next look
-- ARGV[1]  with Redisson: its channel for releases; '' otherwise
-- ARGV[2]  how grants are published: P, S or C, see the grant step
-- ARGV[3]  how long to keep the counter, in milliseconds; 0 = for ever, as Redisson expects
--
-- Reply, one integer: 1 it was held, 0 it was not.
--
-- May be repeated, with one reserve: somebody may have taken the lock in between, and loses it then. Removing whoever
-- is there is what was asked for.

local fields, foreign = count_fields()
if foreign then
  return foreign
end
if fields == 0 then
  return 0
end
redis.call('DEL', KEYS[1])
if not (KEYS[3] and grant(ARGV[2])) and ARGV[1] ~= '' then
  redis.pcall(ARGV[2] == 'S' and 'SPUBLISH' or 'PUBLISH', ARGV[1], '0')
end
return 1
