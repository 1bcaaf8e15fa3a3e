-- The step of all scripts that grant: the next fencing token, an integer that grows whatever happens to its counter.
--
-- KEYS[2]  the counter: a decimal string
-- ARGV[3]  how long to keep it, in milliseconds; '0' = for ever, as Redisson expects; absent = 600000
--
-- It is the server's time in microseconds, or one more than the counter where that is ahead: so it grows even if the counter
-- was lost in a flush or a failover. With a `block`, so many are reserved, of which it is the first. Returns it as text, which
-- is what most of them are told on; or nil and an error if the counter is not a number, and nothing has changed then. Behind them
-- the time, which the time step before this one makes text.

local function set_counter(text, ...)
  if ARGV[3] == '0' then
    return redis.pcall('SET', KEYS[2], text, ...)
  end
  return redis.pcall('SET', KEYS[2], text, 'PX', ARGV[3] or '600000', ...)
end

-- `old` is what the counter was when `last`, the end of a block that begins with the time `text`, was written into it; or the
-- error that refused that.
local function settle_token(text, last, old, block)
  if type(old) == 'table' then
    -- Redis 6.0 has no `SET … GET`; a key of another type is refused by either.
    old = redis.pcall('GET', KEYS[2])
    if type(old) == 'table' then
      return nil, old
    end
    local set = set_counter(last)
    if set.err then
      return nil, set
    end
  end
  if not old then
    return text
  end
  if string.find(old, '^%d+$') then
    if #old < #text or #old == #text and old < text then
      return text
    end
    -- Not `tonumber(old) + 1` alone: leading zeros make a long text of a small number.
    local token = math.max(tonumber(old) + 1, tonumber(text))
    -- In this order: beyond the exact integers `token + 1` may be `token`.
    local block_end = token + (block - 1)
    if block_end <= 9007199254740991 then
      -- Lua's own number to string conversion keeps 14 digits; a token has 16.
      set_counter(string.format('%.0f', block_end))
      return string.format('%.0f', token)
    end
  end
  redis.call('SET', KEYS[2], old)
  return nil, redis.error_reply('BADTOKEN the counter of fencing tokens is not a number, or ran out of the exact integers')
end

local function next_token(time, block)
  local text = micros(time)
  local last = block > 1 and string.format('%.0f', tonumber(text) + block - 1) or text
  local token, refused = settle_token(text, last, set_counter(last, 'GET'), block)
  return token, refused, text
end

