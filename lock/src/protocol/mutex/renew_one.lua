-- Extends the lease of one hold, by fewer steps than `renew`, where nothing waits for replicas.
--
-- KEYS[1]  the lock: a hash of holder -> count
-- ARGV[1]  the hold that is believed to be there
-- ARGV[2]  its lease from now on, in milliseconds
--
-- Reply: 1 the hold is there and has its lease, 0 it is gone.
--
-- May be repeated: a lease only ever grows, and a hold that is gone is never created again.
--
-- A key that holds something else now has no hold of ours: 0. Any other error is the answer.

local call = redis.pcall
local mine = call('HEXISTS', KEYS[1], ARGV[1])
if mine == 1 then
  -- Not shortened, and extended in one command where the server can; Redis before 7.0 knows no `GT`. It passes over a key
  -- without an expiry, which gets one.
  if call('PEXPIRE', KEYS[1], ARGV[2], 'GT') ~= 1 and redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
  end
  return 1
end
if mine ~= 0 and not string.find(mine.err, 'WRONGTYPE', 1, true) then
  return mine
end
return 0
