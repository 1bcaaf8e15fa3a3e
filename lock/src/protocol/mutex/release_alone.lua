-- Ends one hold by the lock's own key only, and hands it on to nobody. For a slot that is migrating, and for users without
-- rights to the line.
--
-- KEYS[1]  the lock: a hash of holder -> count
-- ARGV[1]  the hold
-- ARGV[2]  how to publish: P, S or C, see the grant step
-- ARGV[3]  with Redisson: its channel for releases
--
-- Reply, one integer:  0  the hold was not there
--                      1  it was there, and the lock is free
--
-- May be repeated: the second time finds nothing and changes nothing. Those who wait look every quarter of a second while
-- the slot migrates.

if redis.call('HDEL', KEYS[1], ARGV[1]) == 0 then
  return 0
end
if ARGV[3] then
  redis.pcall(ARGV[2] == 'S' and 'SPUBLISH' or 'PUBLISH', ARGV[3], '0')
end
return 1
