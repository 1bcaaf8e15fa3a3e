-- The step of those who want to write: whether nobody else holds the lock.
--
-- KEYS[1]  the lock: a hash of mode -> read or write, and holder -> count
--
-- A reader whose timeout keys are all gone is gone: its field is removed. Redisson leaves it there, in the way of writers, until
-- the last reader has gone. A timeout key that cannot be read counts as one that is there.
--
-- except   a reader that does not count; nil for none
--
-- Returns true; or false, and for how many milliseconds it stays so at least, if nobody releases anything. Bounded: of a crowd of
-- dead readers some are left for the next time.

local function reads_for(holder, count)
  count = tonumber(count)
  if not count then
    return ttl
  end
  for number = count, math.max(1, count - 127), -1 do
    local left = redis.pcall('PTTL', timeout_key(holder, number))
    if type(left) ~= 'number' or left == -1 then
      return ttl
    elseif left >= 0 then
      return left
    end
  end
end

local function is_free_but_for(except)
  if ttl == -2 then
    return true
  end
  if mode ~= 'read' then
    return false, ttl
  end
  local cursor, pages = '0', 0
  repeat
    local page = redis.call('HSCAN', KEYS[1], cursor, 'COUNT', 128)
    for i = 1, #page[2], 2 do
      local holder = page[2][i]
      if holder ~= 'mode' and holder ~= except then
        local left = reads_for(holder, page[2][i + 1])
        if left then
          return false, left
        end
        redis.call('HDEL', KEYS[1], holder)
      end
    end
    cursor, pages = page[1], pages + 1
  until cursor == '0' or pages == 8
  if cursor ~= '0' then
    return false, 0
  end
  if not except then
    redis.call('HDEL', KEYS[1], 'mode')
    ttl, mode = -2, nil
  end
  return true
end

