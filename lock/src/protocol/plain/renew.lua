-- Extends the leases of plain locks.
--
-- KEYS[i]      a lock: a string, the id of its holder
-- ARGV[2i - 1] the hold that is believed to be there
-- ARGV[2i]     its lease from now on, in milliseconds
--
-- Reply: an array of integers, one a key: 1 the hold is there and has its lease, 0 it is gone.
--
-- May be repeated: a lease only ever grows, and a hold that is gone is never created again.
--
-- A key that holds something else now has no hold of ours: 0, and the others are unharmed. Any other error is the answer to the
-- whole call. It says nothing about the holds, so it must not become a 0.

local held = {}
for i, key in ipairs(KEYS) do
  local holder = redis.pcall('GET', key)
  if type(holder) == 'table' and not string.find(holder.err, 'WRONGTYPE', 1, true) then
    return holder
  end
  held[i] = 0
  if holder == ARGV[2 * i - 1] then
    held[i] = 1
    -- Not shortened, and extended in one command where the server can; Redis before 7.0 knows no `GT`. It passes over a key
    -- without an expiry, which gets one.
    if redis.pcall('PEXPIRE', key, ARGV[2 * i], 'GT') ~= 1 and redis.call('PTTL', key) < tonumber(ARGV[2 * i]) then
      redis.call('PEXPIRE', key, ARGV[2 * i])
    end
  end
end
return held
