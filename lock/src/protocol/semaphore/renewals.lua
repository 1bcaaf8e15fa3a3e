-- The step of scripts that extend permits.
--
-- key    the permits that are taken: a sorted set of 16 bytes -> time of expiry in milliseconds, as Redisson lays it out
-- hold   the hold, count its permits, ms their lease from now on
-- always whether to write in any case, since replicas are to confirm something
--
-- Returns what is left of the lease in milliseconds; nil, or an error that says nothing of the hold, if one of the permits is
-- not there or has expired: then none of them is extended. None is ever shortened, and none created.
--
-- This key alone: what is free does not change by it, and while a slot migrates one key can always be used.

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local function renew(key, hold, count, ms, always)
  local a, b, number = string.match(hold, '^(%x%x%x%x%x%x%x%x)%-%x+%-%x+%-%x+%-%x+(%x%x%x%x%x%x):(%d+)$')
  if not a then
    return nil
  end
  local start = struct.pack('>I4I3I5', tonumber(a, 16), tonumber(b, 16), tonumber(number))
  local least, later = nil, {}
  for index = 0, count - 1 do
    local permit = start .. struct.pack('>I4', index)
    local score = redis.pcall('ZSCORE', key, permit)
    if type(score) == 'table' and not string.find(score.err, 'WRONGTYPE', 1, true) then
      return nil, score
    end
    score = type(score) == 'string' and tonumber(score) or 0
    if score <= now then
      return nil
    end
    if always or score < now + ms then
      later[#later + 1] = string.format('%.0f', math.max(score, now + ms))
      later[#later + 1] = permit
    end
    least = math.min(least or score, score)
  end
  for first = 1, #later, 2000 do
    redis.call('ZADD', key, unpack(later, first, math.min(first + 1999, #later)))
  end
  -- A key without an expiry is Redisson's too.
  local ttl = redis.call('PTTL', key)
  if ttl >= 0 and ttl < ms + 60000 or always and ttl >= 0 then
    redis.call('PEXPIRE', key, math.max(ttl, ms + 60000))
  end
  return math.max(least or 0, now + ms) - now
end

