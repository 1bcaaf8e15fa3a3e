-- Takes permits of a semaphore for one acquisition, all or none; or says for how long others hold them, and joins the line of
-- those who wait. A ticket that waits asks again with the same script.
--
-- KEYS, ARGV[1] to ARGV[5]  see the settle step
-- ARGV[6]  the lease, in milliseconds
-- ARGV[7]  to wait: the ticket; absent to take them now or not at all
-- ARGV[8]  its score, as an earlier answer told it; '' if none did
--
-- Reply: 1                 held by this hold
--        {ms}              held by this hold, for so long from now
--        {0, capacity}     nothing was done: the capacity is another one than the caller's
--        -1 - n            others have them, and the first permit of any expires in n milliseconds; or they cannot be written
--                          at this node any more, since the slot migrates
--        'ms ahead score time new'   the same, with a ticket: so many tickets ahead, the score of this one, the time in µs, and
--                          1 if it was not there
--
-- May be repeated: a hold that is there gets what is left of its lease, which is not extended, and a ticket keeps its place.
--
-- Permits that are free are taken only if nobody stands in line; those who stand there take their turn.

local lease, ticket = tonumber(ARGV[6]), ARGV[7]
if not agrees then
  finish()
  return { 0, capacity }
end
local client, _, _, _, start = identify(ARGV[2])
local count = tonumber(ARGV[3])
if not client then
  return redis.error_reply('ERR not the id of a hold')
end

local function remember_capacity()
  if keeps_capacity then
    pcall('SET', KEYS[3], capacity, 'PX', math.max(10 * lease, 3600000))
  end
end

-- The last one is there only if all were given at once.
if taken > 0 and call('ZSCORE', KEYS[2], permit(start, count - 1)) then
  local all, least = present(start, count)
  if all == count then
    if ticket and KEYS[4] then
      pcall('ZREM', KEYS[4], ticket)
    end
    finish(true)
    return { math.max(1, least - now) }
  end
end
local waiting = KEYS[4] and pcall('ZCARD', KEYS[4])
-- A line that cannot be read has nobody in it.
if (waiting == 0 or type(waiting) ~= 'number') and free >= count then
  if not give(start, 0, count, lease) then
    finish()
    return -251
  end
  remember_capacity()
  finish(true, lease)
  return 1
end

local where
if ticket and KEYS[4] then
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
local is_served = serve(where and ticket, lease)
if is_served then
  remember_capacity()
end
finish(is_served, lease)
if is_served then
  return { lease }
end
local first = call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')[2]
local held = first and math.max(0, tonumber(first) - now) or 1000
if not where then
  return -1 - held
end
-- One that serve dropped, since there are too few permits for it, cannot be asked for here.
return string.format('%d %d %s', held, call('ZRANK', KEYS[4], ticket) or 0, where)
