-- Arrives at a barrier for one party. With the last one the generation passes.
--
-- KEYS[1]  the barrier
-- KEYS[2]  its parties
-- ARGV[1]  the party: an id never used for another arrival
-- ARGV[2]  how many pass together
-- ARGV[3]  the lease of this party, in milliseconds
-- ARGV[4]  how to publish: P, S or C, see the grant step
--
-- Reply: {1, generation, 1 if this party leads}   it has passed
--        {0, generation, ms}                      it waits, and the first party there lives for ms more if it is not renewed
--        {-1, generation}                         its generation is broken, or it was withdrawn
--        {-2, parties}                            the barrier has another number of parties, some of which have arrived
--
-- May be repeated: a party arrives once, and hears how its generation ended for as long as that is known. Everything that can
-- fail comes before the first write.

local known = call('HGET', KEYS[1], 'gen')
local gen = tonumber(known or us)
local mine = call('ZSCORE', KEYS[2], 'g:' .. ARGV[1])
if call('ZSCORE', KEYS[2], 't:' .. ARGV[1]) then
  return { -1, gen }
end
if mine then
  local ended = call('HGET', KEYS[1], 'r:' .. text(tonumber(mine)))
  if ended then
    return ended == 'broken' and { -1, tonumber(mine) } or { 1, tonumber(mine), ended == 'ok ' .. ARGV[1] and 1 or 0 }
  end
  if not known or not call('ZSCORE', KEYS[2], 'a:' .. ARGV[1]) then
    return { -1, tonumber(mine) }
  end
end
local first = known and first_end()
if first and first <= ms then
  end_generation(gen, 'broken', ARGV[4])
  if mine then
    return { -1, gen }
  end
  gen = gen + 1
  first = nil
end
if not mine then
  local parties = call('HGET', KEYS[1], 'parties')
  if first and parties ~= ARGV[2] then
    return { -2, tonumber(parties) or 0 }
  end
  if not known then
    -- Parties of a generation that is lost.
    call('ZREMRANGEBYSCORE', KEYS[2], '0', '100000000000000')
    call('HSET', KEYS[1], 'first', text(gen))
  end
  call('HSET', KEYS[1], 'gen', text(gen), 'parties', ARGV[2])
  call('ZADD', KEYS[2], text(ms + tonumber(ARGV[3])), 'a:' .. ARGV[1], text(gen), 'g:' .. ARGV[1])
end
local ttl = 2 * tonumber(ARGV[3]) + 600000
local passes = call('ZCOUNT', KEYS[2], '0', '100000000000000') >= tonumber(ARGV[2])
if passes then
  end_generation(gen, 'ok ' .. ARGV[1], ARGV[4])
end
for i = 1, 2 do
  call('PEXPIRE', KEYS[i], math.max(ttl, call('PTTL', KEYS[i])))
end
if passes then
  return { 1, gen, 1 }
end
return { 0, gen, first_end() - ms }
