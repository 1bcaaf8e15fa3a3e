-- Deletes a lock that is a string, if its holder is still the one that was shown.
--
-- KEYS[1]  the lock
-- ARGV[1]  its holder
--
-- Reply: 1 if it was deleted. May be repeated: another holder has another id.

if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0
