-- The rest of a request for a lock that others hold or wait for. Keys, arguments and reply: ask_read.lua.

if reading or writing then
  if ARGV[6] and ARGV[6] ~= '' then
    redis.pcall('ZREM', KEYS[3], ARGV[6])
  end
  return still_held(0)
end
if ttl == -1 then
  return foreign_data() or 0
end
if ttl ~= -2 and mode ~= 'read' and mode ~= 'write' then
  -- A mutex of this name is waited for.
  local refused = foreign_data()
  if refused then
    return refused
  end
end
if not ARGV[6] or ARGV[6] == '' then
  if waiting then
    -- The tickets in line may be of processes that are gone.
    serve(ARGV[4], nil)
    waiting = others_wait() == 1
  end
  if not waiting and reads and (ttl == -2 or mode == 'read') and enter_to_read(ARGV[1], ARGV[2]) then
    return token_of_latest_writer()
  end
  if not waiting and not reads and is_free_but_for(nil) then
    local token, refused = next_token(redis.call('TIME'), 1)
    if refused then
      return refused
    end
    local entered, failed = enter_to_write(ARGV[1], ARGV[2])
    if not entered then
      return failed
    end
    return tonumber(token)
  end
  return -1 - math.max(ttl, 0)
end

-- A writer is the first one in line unless readers that hold the lock have heard of another one.
local first = redis.pcall('ZRANGE', KEYS[3], 0, 0)[1]
local is_first_writer = not reads and not (first and string.find(first, 'w$'))
local score = ARGV[7] ~= '' and ARGV[7] or nil
if not score then
  -- A user who may not take tickets out of the line must not put them there: a writer's would keep readers back for a minute.
  redis.call('ZREM', KEYS[3], '')
end
local ahead, where = join(ARGV[6], score)
if not where then
  return ahead
end
local token, anybody, wait, refused = serve(ARGV[4], ARGV[6])
if refused then
  return refused
end
if anybody then
  tell_readers_of_redisson(ARGV[4], ARGV[5])
end
if token then
  return { tonumber(token), tonumber(ARGV[2]), others_wait() }
end
if is_first_writer and mode == 'read' then
  notify_readers(ARGV[4])
end
return string.format('%d %d %s', math.max(wait or ttl, 0), redis.call('ZRANK', KEYS[3], ARGV[6]), where)
