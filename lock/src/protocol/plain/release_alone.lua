-- Ends one hold by the lock's own key only, and hands it on to nobody. For a slot that is migrating, and for users without
-- rights to the line.
--
-- KEYS[1]  the lock: a string, the id of its holder
-- ARGV[1]  the hold
--
-- Reply, one integer:  0  the hold was not there
--                      1  it was there, and the lock is free
--
-- May be repeated: the second time finds nothing and changes nothing.

if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
return redis.call('DEL', KEYS[1])
