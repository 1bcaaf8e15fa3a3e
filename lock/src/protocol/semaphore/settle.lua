-- The first step of all scripts that count: what lives, how many permits there are in all, and how many of them are free.
--
-- KEYS[1]  the free permits: a decimal string, as Redisson lays it out
-- KEYS[2]  the permits that are taken: a sorted set of 16 bytes -> time of expiry in milliseconds, as Redisson lays it out
-- KEYS[3]  the capacity: a decimal string that Redisson never reads
-- KEYS[4]  the line: a sorted set of tickets by place; absent while the slot migrates
-- ARGV[1]  the capacity that the caller believes in
-- ARGV[2]  the hold
-- ARGV[3]  its permits
-- ARGV[4]  how grants are published: P, S or C, see the grant step
-- ARGV[5]  with Redisson: its channel for releases; '' without
--
-- The free permits are the capacity less what lives, computed, so what a crash, a resent request or a lost key has changed
-- counts no longer than until the next script. Only the sum of both keys tells that somebody raised the capacity who does
-- not know its key: then that is believed where the caller says the same. Otherwise it is a disagreement: nothing is
-- granted, and the free permits follow by differences, as with Redisson.
--
-- `settled` is false then, and `agrees` also if the caller believes in another capacity than `capacity`. `free` may be
-- negative after the capacity was lowered.
--
-- The permits of a hold are 16 bytes each: the first 4 and the last 3 bytes of the client's id, which are random, 5 of the
-- hold's number, and 4 of the permit's, big endian. Two clients of ten thousand have the same 7 bytes with a probability of
-- one in a billion, and then only holds with the same number at the same time would be one. A number comes again after
-- 10^12 acquisitions of a client.

local call, pcall = redis.call, redis.pcall
-- The first word of the messages of grants.
local word = 'GS'
local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local stored = call('GET', KEYS[1])
if stored and not string.find(stored, '^%-?%d+$') then
  return redis.error_reply('WRONGTYPE the key holds a string that is not a number of permits')
end
local free, taken = tonumber(stored), call('ZCARD', KEYS[2])
local stated, known = tonumber(ARGV[1]), pcall('GET', KEYS[3])
-- Unknown if it cannot be read. Then it is not written either.
local keeps_capacity = type(known) ~= 'table'
known = keeps_capacity and tonumber(known) or nil
local capacity, settled = known or stated, true
local sum = free and free + taken
if sum and (not known or sum > known) then
  capacity, settled = sum, sum == stated
end
-- A caller that does not know the capacity says 0; if nobody does, nothing is computed.
settled = settled and capacity > 0
local agrees = settled and capacity == stated
-- By rank, in one command: no number of expired permits is too large for it.
local expired = taken > 0 and call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now) or 0
taken = taken - expired
free = settled and capacity - taken or (free or 0) + expired

-- The parts of a hold or a ticket: client, number, grant lease, permits, the 12 bytes that its permits begin with, and whether it
-- polls, as a leading zero of the grant lease says.
local function identify(text)
  local client, a, b, number, lease, permits =
    string.match(text, '^((%x%x%x%x%x%x%x%x)%-%x+%-%x+%-%x+%-%x+(%x%x%x%x%x%x)):(%d+)|?(%d*)%+?p?(%d*)$')
  if not client then
    return nil
  end
  local start = struct.pack('>I4I3I5', tonumber(a, 16), tonumber(b, 16), tonumber(number))
  return client, number, lease == '' and 1000 or tonumber(lease), tonumber(permits), start, string.byte(lease) == 48
end

local function permit(start, index)
  return start .. struct.pack('>I4', index)
end

-- Of the first `count` permits of a hold: how many are there before the first that is missing, and when the first of them
-- expires.
local function present(start, count)
  local least
  for index = 0, count - 1 do
    local score = call('ZSCORE', KEYS[2], permit(start, index))
    if not score then
      return index, least
    end
    score = tonumber(score)
    least = least and math.min(least, score) or score
  end
  return count, least
end

-- Writes `command` for permits `first` to `first + count - 1`, a thousand at a time. Returns how many were added or removed; nil
-- if none could be: the source of a migrating slot does not write a key again that the same script has emptied.
local function write(command, start, first, count, score)
  local changed, last = 0, first + count - 1
  while first <= last do
    local args = { command, KEYS[2] }
    for index = first, math.min(last, first + 999) do
      if score then
        args[#args + 1] = string.format('%.0f', score)
      end
      args[#args + 1] = permit(start, index)
    end
    local done = pcall(unpack(args))
    if type(done) ~= 'number' then
      if string.find(done.err, 'executing the script', 1, true) or string.find(done.err, 'ACL failure', 1, true) then
        -- Without the right to it the caller would wait for ever: the error is thrown.
        call(unpack(args))
      end
      return nil
    end
    changed = changed + done
    first = first + 1000
  end
  return changed
end

-- Gives a hold these permits for so many milliseconds. Without Redisson their key outlives them by a minute; Redisson would
-- lose permits of its own with it. Returns whether that could be written.
local function give(start, first, count, ms)
  local kept = ARGV[5] == '' and call('PTTL', KEYS[2])
  local added = write('ZADD', start, first, count, now + ms)
  if not added then
    return false
  end
  free = free - added
  if kept and kept < ms + 60000 then
    call('PEXPIRE', KEYS[2], ms + 60000)
  end
  return true
end

-- Gives a hold what it asked for at its own request.
local function enter(start, count, ms)
  return give(start, 0, count, ms)
end

-- Takes permits back. Returns how many there were.
local function take(start, first, count)
  local removed = write('ZREM', start, first, count) or 0
  free = free + removed
  return removed
end

-- The last step: writes what is free, in any case if `always`, since replicas are to confirm something; and tells Redisson's
-- waiters if that has become more. Without Redisson the key outlives a lease by a minute at least, and is computed again
-- when it is gone.
local function finish(always, ms)
  if not settled and not stored then
    return
  end
  local text = string.format('%.0f', free)
  if stored and (always or stored ~= text) then
    call('SET', KEYS[1], text, 'KEEPTTL')
  elseif not stored and ARGV[5] == '' then
    call('SET', KEYS[1], text, 'PX', (ms or 0) + 60000)
  elseif not stored then
    call('SET', KEYS[1], text)
  end
  if ARGV[5] ~= '' and free > math.max(tonumber(stored) or 0, 0) then
    pcall(ARGV[4] == 'S' and 'SPUBLISH' or 'PUBLISH', ARGV[5], text)
  end
end

