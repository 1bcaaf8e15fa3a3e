-- Extends the leases of many holds.
--
-- KEYS[i]      a lock: a hash of holder -> count
-- ARGV[2i - 1] the hold that is believed to be there
-- ARGV[2i]     its lease from now on, in milliseconds
--
-- Reply: the number of the keys if each hold is there and has its lease; otherwise an array of integers, one a key: 1 it is
-- there and has its lease, 0 it is gone.
--
-- May be repeated: a lease only ever grows, and a hold that is gone is never created again.
--
-- A key that holds something else now has no hold of ours: 0, and the others are unharmed. Any other error is the
-- answer to the whole call. It says nothing about the holds, so it must not become a 0.
--
-- Runs for every lock there is, three times a lease: locals instead of globals, and a reply of one integer, take a tenth of its
-- time.

local call, keys, args = redis.pcall, KEYS, ARGV
local knows_gt = true
local gone
for i = 1, #keys do
  local key = keys[i]
  local mine = call('HEXISTS', key, args[2 * i - 1])
  if mine == 1 then
    -- Not shortened, and extended in one command where the server can; Redis before 7.0 knows no `GT`. It passes over a key
    -- without an expiry, which gets one.
    local lease = args[2 * i]
    local extended = knows_gt and call('PEXPIRE', key, lease, 'GT')
    if extended ~= 1 then
      knows_gt = extended == 0
      if redis.call('PTTL', key) < tonumber(lease) then
        redis.call('PEXPIRE', key, lease)
      end
    end
  elseif mine == 0 or string.find(mine.err, 'WRONGTYPE', 1, true) then
    gone = gone or {}
    gone[i] = true
  else
    return mine
  end
end
if not gone then
  return #keys
end
local held = {}
for i = 1, #keys do
  held[i] = gone[i] and 0 or 1
end
return held
