-- Extends the leases of many holds.
--
-- KEYS[i]      the permits of a semaphore that are taken, see the renewal step
-- ARGV[3i - 2] the hold that is believed to be there
-- ARGV[3i - 1] its permits
-- ARGV[3i]     its lease from now on, in milliseconds
--
-- Reply: an array of integers, one a key: 1 the hold is there and has its lease, 0 one of its permits is gone.
--
-- May be repeated: a lease only ever grows, and a hold that is gone is never created again.
--
-- A key that holds something else now has no hold of ours: 0, and the others are unharmed. Any other error is the
-- answer to the whole call. It says nothing about the holds, so it must not become a 0.

local held = {}
for i, key in ipairs(KEYS) do
  local left, refused = renew(key, ARGV[3 * i - 2], tonumber(ARGV[3 * i - 1]), tonumber(ARGV[3 * i]), false)
  if refused then
    return refused
  end
  held[i] = left and 1 or 0
end
return held
