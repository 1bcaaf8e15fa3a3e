-- Extends the leases of many holds that read.
--
-- KEYS[2i - 1]  a lock: a hash of mode -> read or write, and holder -> count
-- KEYS[2i]      the timeout key of the hold
-- ARGV[2i - 1]  the hold that is believed to be there
-- ARGV[2i]      its lease from now on, in milliseconds
--
-- Reply: an array of integers, one a hold: 1 the hold is there and has its lease, 2 the same, and others wait, 0 it is gone.
--
-- May be repeated: a lease only ever grows, and a hold that is gone is never created again.
--
-- The field is the hold: while it stands no writer can have entered, so a timeout key that got lost is written anew. Both are
-- extended each time, since a renewal by Redisson sets the expiry of the lock to that of its own lease.
--
-- A hold that was asked for while the slot migrated, or is being upgraded, writes: it has no timeout key.
--
-- A key that holds something else now has no hold of ours: 0, and the others are unharmed. Any other error is the
-- answer to the whole call. It says nothing about the holds, so it must not become a 0.

-- Not shortened, and extended in one command where the server can; Redis before 7.0 knows no `GT`. It passes over a key
-- without an expiry, which gets one. Returns false if the key is absent.
local function extend(key, lease)
  if always or redis.pcall('PEXPIRE', key, lease, 'GT') ~= 1 then
    local ttl = redis.call('PTTL', key)
    return redis.call('PEXPIRE', key, math.max(ttl, tonumber(lease))) == 1
  end
  return true
end

local held = {}
for i = 1, #KEYS / 2 do
  local key, timeout_key = KEYS[2 * i - 1], KEYS[2 * i]
  local id, lease = ARGV[2 * i - 1], ARGV[2 * i]
  local known = redis.pcall('HMGET', key, id, id .. ':write')
  if known.err and not string.find(known.err, 'WRONGTYPE', 1, true) then
    return known
  end
  held[i] = 0
  if known[1] and not extend(timeout_key, lease) then
    redis.call('SET', timeout_key, '1', 'PX', lease)
  end
  if known[1] or known[2] then
    extend(key, lease)
    -- Not among the keys: it is absent as a rule, and while the slot migrates the call would be refused for it.
    local braces = string.find(key, '{', 1, true)
    local line = braces and 'leasehold_line:' .. key or 'leasehold_line:{' .. key .. '}'
    local waiting = redis.pcall('ZCARD', line)
    held[i] = type(waiting) == 'number' and waiting > 0 and 2 or 1
  end
end
return held
