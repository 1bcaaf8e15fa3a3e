-- The taking over itself. Keys, arguments and reply: take_over.lua.

-- The hold of the former owner, and whether that writes.
local function former_hold()
  local cursor, pages = '0', 0
  repeat
    local page = redis.call('HSCAN', KEYS[1], cursor, 'COUNT', 128)
    for i = 1, #page[2], 2 do
      local field = page[2][i]
      local digits, suffix = string.match(string.sub(field, #ARGV[4] + 1), '^(%d+)(.*)$')
      if string.sub(field, 1, #ARGV[4]) == ARGV[4] and digits and #digits == 7 then
        if suffix == '' or suffix == ':write' then
          return ARGV[4] .. digits, suffix ~= ''
        end
      end
    end
    cursor, pages = page[1], pages + 1
  until cursor == '0' or pages == 8
end

if not reading and not writing then
  local former, writes = former_hold()
  if not former or not writes and not KEYS[4] then
    return -1
  end
  if writes then
    local token, refused = next_token(redis.call('TIME'), 1)
    if refused then
      return refused
    end
    redis.call('HDEL', KEYS[1], former .. ':write')
    enter_to_write(ARGV[1], ARGV[2])
    return { tonumber(token), ttl, others_wait() }
  end
  if not enter_to_read(ARGV[1], ARGV[2]) then
    return -1
  end
  redis.call('HDEL', KEYS[1], former)
  redis.pcall('DEL', timeout_key(former, 1))
  reading = '1'
end
return still_held(0)
