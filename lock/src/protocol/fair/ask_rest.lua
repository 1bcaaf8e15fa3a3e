-- The request for a fair lock that is held, or waited for, or whose counter is not simply behind the time. Keys, arguments and
-- reply: ask.lua.

local ticket, known = ARGV[4], tonumber(ARGV[7])

local function take()
  local token, refused
  if text then
    token, refused = settle_token(text, text, old, 1)
  else
    token, refused = next_token(redis.call('TIME'), 1)
  end
  if refused then
    return refused
  end
  redis.call('HSET', KEYS[1], ARGV[1], '1')
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return tonumber(token)
end

-- Whether anybody waits for a lock that is free.
local function is_wanted()
  if KEYS[4] then
    return settle() ~= nil
  end
  local tickets = redis.pcall('ZCARD', KEYS[3])
  return type(tickets) == 'number' and tickets > 0
end

-- Puts the ticket in line: with its score, or at the end. Returns the score, the server's time in microseconds, 1 if it was
-- not there, and its run if that is known.
local function stand()
  clock = redis.call('TIME')
  local now, score, run = clock[1] * 1000000 + clock[2], tonumber(ARGV[5]), nil
  if not score then
    local last = redis.call('ZREVRANGE', KEYS[3], 0, 0, 'WITHSCORES')[2]
    score = last and math.max(now, tonumber(last) + 1) or now
    if KEYS[4] and not redis.call('ZSCORE', KEYS[3], ticket) then
      run = run_at_end(score, not last)
    end
  end
  local missing = redis.call('ZADD', KEYS[3], 'NX', score, ticket)
  redis.call('PEXPIRE', KEYS[3], 60000)
  if missing == 0 then
    score = tonumber(redis.call('ZSCORE', KEYS[3], ticket))
  end
  return score, now, missing, run
end

if waiting == 0 then
  return take()
end
if ttl ~= -2 and redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1 then
  if ticket and KEYS[4] then
    leave_line(ticket)
  elseif ticket then
    redis.pcall('ZREM', KEYS[3], ticket)
  end
  return held_by_us(ttl)
end
local refused = ttl ~= -2 and foreign_data()
if refused then
  return refused
end
if ttl == -1 then
  return 0
end
if not ticket then
  if ttl == -2 and not is_wanted() then
    return take()
  end
  return -1 - math.max(ttl, 0)
end
local score, now, missing, run = stand()
if KEYS[4] then
  local who, first = settle(known)
  run = run or run_of(score, known)
  keep_markers(who, first, run)
end
if ttl == -2 then
  local granted, token, lease = grant(ARGV[6], ticket)
  if granted == ticket then
    return { tonumber(token), lease }
  end
  if not granted and token then
    return token
  end
  -- Redisson's turn, or a first that could not be told and takes the lock at its own look.
  ttl = lease or 1000
end
local place = redis.call('ZRANK', KEYS[3], ticket) or 0
-- The fence of the first run is none of those ahead.
place = KEYS[4] and math.max(place - 1, 0) or place
local where = string.format('%d %d %.0f %.0f %d', ttl, place, score, now, missing)
return run and run >= 0 and where .. ' ' .. run or where
