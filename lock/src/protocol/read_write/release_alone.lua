-- Ends one hold by the lock's own key only, and hands it on to nobody. For a slot that is migrating, and for users without
-- rights to the line. The timeout key of a reader ends with its lease: without its field it means nothing.
--
-- KEYS[1]  the lock: a hash of mode -> read or write, and holder -> count
-- ARGV[1]  the hold
-- ARGV[2]  how to publish: P, S or C, see the serve step
-- ARGV[3]  with Redisson: its channel for releases
--
-- Reply, one integer:  0  the hold was not there
--                      1  it was there and is gone
--
-- May be repeated: the second time finds nothing and changes nothing. Those who wait look every quarter of a second while
-- the slot migrates.

local fields = redis.call('HLEN', KEYS[1])
local removed = redis.call('HDEL', KEYS[1], ARGV[1], ARGV[1] .. ':write')
if removed > 0 and fields - removed == 1 then
  redis.call('HDEL', KEYS[1], 'mode')
  if ARGV[3] then
    redis.pcall(ARGV[2] == 'S' and 'SPUBLISH' or 'PUBLISH', ARGV[3], '1')
  end
end
return removed
