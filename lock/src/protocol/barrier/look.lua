-- Tells how the latest generations of a barrier ended. One whose party has died is broken here.
--
-- KEYS[1]  the barrier
-- KEYS[2]  its parties
-- ARGV[1]  how to publish: P, S or C, see the grant step
-- ARGV[2]  a generation of which a party is gone, to be broken if it is the present one; '' for none
--
-- Reply: {generation, ms, all fields of the barrier}: the first party there lives for ms more if it is not renewed, -1 if nobody
-- has arrived. The generation is 0 if the barrier is gone.
--
-- May be repeated: a generation ends once.

local gen = tonumber(call('HGET', KEYS[1], 'gen') or 0)
local first = first_end()
if gen > 0 and (first and first <= ms or ARGV[2] == text(gen)) then
  end_generation(gen, 'broken', ARGV[1])
  gen, first = gen + 1, nil
end
return { gen, first and first - ms or -1, call('HGETALL', KEYS[1]) }
