-- Takes permits of a semaphore without owners, all or none; or joins the line of those who wait. A ticket that waits asks again
-- with the same script.
--
-- KEYS, ARGV[1] to ARGV[5]  see the count step
-- ARGV[6]  how long the answer is remembered, in milliseconds
-- ARGV[7]  to wait: the ticket; absent to take them now or not at all
-- ARGV[8]  its score, as an earlier answer told it; '' if none did
--
-- Reply: {ms}    taken by this request, now or before
--        -1 - n  there are not enough, and nothing says when there will be
--        'ms ahead score time new'   the same, with a ticket: so many tickets ahead, the score of this one, the time in µs, and
--                1 if it was not there
--
-- May be repeated for a minute: what it has taken is remembered under its id, and what was given back is not taken again.
--
-- Permits that are free are taken only if nobody stands in line; those who stand there take their turn.

local remembered, ticket, count = tonumber(ARGV[6]), ARGV[7], tonumber(ARGV[3])
local _, _, _, _, hold = identify(ARGV[2])
if not hold then
  return redis.error_reply('ERR not the id of a hold')
end
local known = call('GET', KEYS[3])
if known then
  pcall('ZREM', KEYS[4], ticket or '')
  finish(true)
  return tonumber(known) == count and { remembered } or -1001
end
local waiting = pcall('ZCARD', KEYS[4])
local _, kept = reservation(hold)
-- Granted, and not confirmed yet. A line that cannot be read has nobody in it.
if kept == count or (waiting == 0 or type(waiting) ~= 'number') and free + kept >= count then
  if ticket then
    pcall('ZREM', KEYS[4], ticket)
  end
  enter(hold, count)
  finish(true)
  return { remembered }
end

local where
if ticket then
  local micros = time[1] * 1000000 + time[2]
  local score = tonumber(ARGV[8])
  if not score then
    -- Above all in line: a clock that was set back lets nobody in front.
    local last = pcall('ZREVRANGE', KEYS[4], 0, 0, 'WITHSCORES')[2]
    score = last and math.max(micros, tonumber(last) + 1) or micros
  end
  local missing = pcall('ZADD', KEYS[4], 'NX', string.format('%.0f', score), ticket)
  if type(missing) == 'number' then
    pcall('PEXPIRE', KEYS[4], 60000)
    score = missing == 1 and score or tonumber(call('ZSCORE', KEYS[4], ticket))
    if score % 1 > 0 then
      -- It was told to look, see the grant step.
      score = math.floor(score)
      pcall('ZADD', KEYS[4], 'XX', string.format('%.0f', score), ticket)
    end
    where = string.format('%.0f %.0f %d', score, micros, missing)
  end
end
local is_served = serve(where and ticket, remembered)
finish(is_served)
if is_served then
  return { remembered }
end
if not where then
  return -1001
end
return string.format('60000 %d %s', call('ZRANK', KEYS[4], ticket) or 0, where)
