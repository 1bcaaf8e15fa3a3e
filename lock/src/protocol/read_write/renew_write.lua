-- Extends the leases of many holds that write.
--
-- KEYS[i]      a lock: a hash of mode -> read or write, and holder -> count
-- ARGV[2i - 1] the hold that is believed to be there
-- ARGV[2i]     its lease from now on, in milliseconds
--
-- Reply: an array of integers, one a key: 1 the hold is there and has its lease, 0 it is gone.
--
-- May be repeated: a lease only ever grows, and a hold that is gone is never created again.
--
-- A hold that is being downgraded reads by now: it is there, and its lease is that of the downgrade.
--
-- A key that holds something else now has no hold of ours: 0, and the others are unharmed. Any other error is the
-- answer to the whole call. It says nothing about the holds, so it must not become a 0.

local held = {}
for i, key in ipairs(KEYS) do
  local id = ARGV[2 * i - 1]
  local known = redis.pcall('HMGET', key, id .. ':write', id)
  if known.err and not string.find(known.err, 'WRONGTYPE', 1, true) then
    return known
  end
  held[i] = (known[1] or known[2]) and 1 or 0
  -- Not shortened, and extended in one command where the server can; Redis before 7.0 knows no `GT`. It passes over a key
  -- without an expiry, which gets one.
  if known[1] and (always or redis.pcall('PEXPIRE', key, ARGV[2 * i], 'GT') ~= 1) then
    redis.call('PEXPIRE', key, math.max(redis.call('PTTL', key), tonumber(ARGV[2 * i])))
  end
end
return held
