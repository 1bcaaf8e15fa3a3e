-- The first step of all scripts of a semaphore without owners: how many permits are free.
--
-- KEYS[1]  the free permits: a decimal string, as Redisson lays it out
-- KEYS[2]  the reservations: a sorted set of `<hold>=<permits>` -> time of expiry in milliseconds. Redisson does not know it
-- KEYS[3]  what became of one request: the permits that it took, 0 once they were given back; a minute long
-- KEYS[4]  the line: a sorted set of tickets by place
-- ARGV[1]  how many permits are free if nobody ever used it; '' for none
-- ARGV[2]  the hold, which is the request
-- ARGV[3]  its permits
-- ARGV[4]  how grants are published: P, S or C, see the grant step
-- ARGV[5]  with Redisson: its channel for releases; '' without
--
-- A permit has no owner once it is taken, so what a holder that crashed had is gone. Until then, from its grant to its
-- confirmation, it is reserved, and comes back when that takes too long.

local call, pcall = redis.call, redis.pcall
-- The first word of the messages of grants.
local word = 'GC'
local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local stored = call('GET', KEYS[1])
if stored and not string.find(stored, '^%-?%d+$') then
  return redis.error_reply('WRONGTYPE the key holds a string that is not a number of permits')
end
local was = tonumber(stored or ARGV[1]) or 0
local free = was
-- There is no number of them in all.
local capacity, settled = math.huge, true
local expired = pcall('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, 1000)
for _, member in ipairs(expired) do
  pcall('ZREM', KEYS[2], member)
  free = free + tonumber(string.match(member, '=(%d+)$') or 0)
end

-- The parts of a hold or a ticket: client, number, grant lease, permits, and the hold.
local function identify(text)
  local client, number, lease, permits = string.match(text, '^(.+):(%d+)|?(%d*)%+?p?(%d*)$')
  if not client then
    return nil
  end
  return client, number, lease == '' and 1000 or tonumber(lease), tonumber(permits), client .. ':' .. number
end

-- The reservation of a hold, and of how many permits.
local function reservation(hold)
  for _, member in ipairs(pcall('ZRANGE', KEYS[2], 0, -1)) do
    local start, count = string.match(member, '^(.+)=(%d+)$')
    if start == hold then
      return member, tonumber(count)
    end
  end
  return nil, 0
end

-- How many permits are reserved for a hold, and until when.
local function present(hold)
  local member, count = reservation(hold)
  return count, member and tonumber(call('ZSCORE', KEYS[2], member))
end

-- Takes the reservation of a hold back. Returns how many permits it was for.
local function take(hold)
  local member, count = reservation(hold)
  if member then
    pcall('ZREM', KEYS[2], member)
    free = free + count
  end
  return count
end

-- Reserves `first + count` permits for a hold, for so many milliseconds. Returns whether that could be written.
local function give(hold, first, count, ms)
  take(hold)
  local added = pcall('ZADD', KEYS[2], string.format('%.0f', now + ms), hold .. '=' .. string.format('%d', first + count))
  if type(added) ~= 'number' then
    return false
  end
  free = free - first - count
  pcall('PEXPIRE', KEYS[2], 60000)
  return true
end

-- Gives a hold what it asked for at its own request.
local function enter(hold, count)
  take(hold)
  free = free - count
  call('SET', KEYS[3], count, 'PX', 60000)
  return true
end

-- The last step: writes what is free, in any case if `always`, and tells Redisson's waiters if that has become more. The key
-- keeps its expiry, which is none unless Redisson gave it one: the number is nowhere else.
local function finish(always)
  local text = string.format('%.0f', free)
  if always or free ~= was then
    if stored then
      call('SET', KEYS[1], text, 'KEEPTTL')
    else
      call('SET', KEYS[1], text)
    end
  end
  if ARGV[5] ~= '' and free > math.max(tonumber(stored) or 0, 0) then
    pcall(ARGV[4] == 'S' and 'SPUBLISH' or 'PUBLISH', ARGV[5], text)
  end
end

