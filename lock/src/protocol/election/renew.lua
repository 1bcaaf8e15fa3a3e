-- Extends the leases of many leaders, and the time that their entries are kept.
--
-- KEYS[2i - 1]  a lock: a hash of holder -> count
-- KEYS[2i]      the entry of its leader
-- ARGV[2i - 1]  the hold that is believed to be there
-- ARGV[2i]      its lease from now on, in milliseconds
--
-- Reply: an array of integers, one a lock: 1 the hold is there and has its lease, 0 it is gone.
--
-- May be repeated: a lease only ever grows, and a hold that is gone is never created again. Something is written for each that
-- is there: `WAIT` may follow, and newer servers confirm at once what wrote nothing.
--
-- A lock that holds something else now has no hold of ours: 0, and the others are unharmed. An entry that is not of this leader
-- stays as it is, without an expiry if it is somebody's data. Any other error is the answer to the whole call. It says nothing
-- about the holds, so it must not become a 0.

local held = {}
for i = 1, #KEYS / 2 do
  local lock = KEYS[2 * i - 1]
  local mine = redis.pcall('HEXISTS', lock, ARGV[2 * i - 1])
  if type(mine) == 'table' and not string.find(mine.err, 'WRONGTYPE', 1, true) then
    return mine
  end
  held[i] = 0
  if mine == 1 then
    held[i] = 1
    local ttl = math.max(redis.call('PTTL', lock), tonumber(ARGV[2 * i]))
    redis.call('PEXPIRE', lock, ttl)
    if redis.pcall('HGET', KEYS[2 * i], 'id') == ARGV[2 * i - 1] then
      redis.pcall('PEXPIRE', KEYS[2 * i], ttl + 10000)
    end
  end
end
return held
