-- Removes a lock, whoever holds it, and wakes those who wait for it.
--
-- KEYS[1]  the lock: a hash of holder -> count
-- ARGV[1]  the channel its waiters listen on
-- ARGV[2]  how it is published on: PUBLISH, or SPUBLISH where channels belong to slots
--
-- Reply, one integer: 1 it was held, 0 it was not.
--
-- May be repeated, with one reserve: somebody may have taken the lock in between, and loses it then. Removing whoever
-- is there is what was asked for.
--
-- HLEN refuses a key of another type with WRONGTYPE: DEL would delete anybody's data.

if redis.call('HLEN', KEYS[1]) == 0 then
  return 0
end
redis.call('DEL', KEYS[1])
redis.pcall(ARGV[2], ARGV[1], '0')
return 1
