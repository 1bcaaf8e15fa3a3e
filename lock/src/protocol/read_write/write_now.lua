-- Writing where nobody holds the lock or waits for it. Keys, arguments and reply: ask_write.lua.

if ttl == -2 and not waiting then
  local token, refused = next_token(call('TIME'), 1)
  if refused then
    return refused
  end
  call('HSET', KEYS[1], 'mode', 'write', ARGV[1] .. ':write', '1')
  call('PEXPIRE', KEYS[1], ARGV[2])
  return tonumber(token)
end

