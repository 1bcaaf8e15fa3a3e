-- Ends one hold and wakes those who wait for the lock.
--
-- KEYS[1]  the lock: a hash of holder -> count
-- ARGV[1]  the hold
-- ARGV[2]  the channel its waiters listen on
-- ARGV[3]  how it is published on: PUBLISH, or SPUBLISH where channels belong to slots
--
-- Reply, one integer:  0        the hold was not there: released before, expired, or forced
--                      1 + n    it was there and is gone; n connections of this node heard of it
--
-- May be repeated: the second time finds nothing and changes nothing.
--
-- The message goes out through pcall: a refused one (an ACL without the channel) must not hide that the hold is
-- gone. Waiters who miss it look again when the lease would have ended.
--
-- So does EXISTS: a source of a migrating slot answers for a key that is gone, as this one is when its last hold is, that
-- it is not local, and that error would hide it too.

if redis.call('HDEL', KEYS[1], ARGV[1]) == 0 then
  return 0
end
if redis.pcall('EXISTS', KEYS[1]) == 1 then
  return 1
end
local heard = redis.pcall(ARGV[3], ARGV[2], '0')
if type(heard) == 'number' then
  return 1 + heard
end
return 1
