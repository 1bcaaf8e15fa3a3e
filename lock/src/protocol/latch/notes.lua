-- The step of the scripts that change a latch: what is known of it beside its count, which Redisson has no place for.
--
-- KEYS[1]  the latch: a decimal string, as Redisson lays it out; absent is open
-- KEYS[2]  the notes, a sorted set, whose members are
--            v            the count when a script of ours wrote it last
--            d            the latest opening: a number that only grows
--            x            when the latch expires, in ms, if it was set to
--            o:<request>  a request that was carried out, at minus the time in ms
--            p:<name>     a participant that was counted since the latch was set or opened, at -1
--
-- The count is an error if the key holds something else. `anew` is true if the count is above the noted one: Redisson has set
-- the latch again, which it does only after an opening.

local call = redis.call
local text = call('GET', KEYS[1])
if text and not string.find(text, '^%-?%d+$') then
  return redis.error_reply('WRONGTYPE the key holds a string that is not a count')
end
local count = text and tonumber(text)

local function noted(member)
  local score = call('ZSCORE', KEYS[2], member)
  return score and tonumber(score)
end

local seen, opened = noted('v'), noted('d')
local anew = count and seen and seen > 0 and count > seen
local time = call('TIME')
local ms = time[1] * 1000 + math.floor(time[2] / 1000)

local function next_opening()
  return math.max(time[1] * 1000000 + time[2], (opened or 0) + 1)
end

-- Writes the notes of `request`, and forgets requests that are ten minutes old and whose copies cannot arrive any more.
local function note(request, value, opening, ...)
  call('ZREMRANGEBYSCORE', KEYS[2], string.format('(%.0f', 600000 - ms), '(-1')
  local number = string.format
  call('ZADD', KEYS[2], number('%.0f', -ms), 'o:' .. request, number('%.0f', value), 'v', ...)
  if opening then
    call('ZADD', KEYS[2], number('%.0f', opening), 'd')
  end
end

-- Keeps the notes: for a day after the latest change while the latch is closed, for an hour beyond the latch where that
-- expires or has opened. Writes in any case: `WAIT` may follow, and newer servers confirm at once what wrote nothing.
local function keep()
  local left = call('PTTL', KEYS[1])
  call('PEXPIRE', KEYS[2], left == -1 and 86400000 or math.max(left, 0) + 3600000)
end

-- Tells those who wait here, and Redisson's waiters if its channel is given.
local function tell(message, mode, redisson)
  local publish = mode == 'S' and 'SPUBLISH' or 'PUBLISH'
  redis.pcall(publish, KEYS[2], message)
  if redisson then
    redis.pcall(publish, redisson, message)
  end
end

