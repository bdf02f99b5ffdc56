"""`yb_hash_code(…)` for a real PostgreSQL, in its own arithmetic: the word of a server against which a driver is held.

It decides how the function is written in SQL and PL/pgSQL. It shares no line, and no shortcut, with any computation of
a driver: 64-bit words are numerics, and the bytes of a value are what the type's own `…send` function gives.

*Source*: `yugabyte-smart-drivers.md` section 7.2. The original takes any number of columns; these take up to three, the
third of a few types.
"""

from __future__ import annotations

from typing import Final

_WORDS: Final = """
CREATE FUNCTION yb_xor(a numeric, b numeric) RETURNS numeric LANGUAGE sql IMMUTABLE AS $$
    SELECT (div(a, 4294967296)::int8 # div(b, 4294967296)::int8)::numeric * 4294967296
        + (mod(a, 4294967296)::int8 # mod(b, 4294967296)::int8)
$$;
CREATE FUNCTION yb_step(x numeric, y numeric, z numeric, shifted numeric, places int) RETURNS numeric
LANGUAGE sql IMMUTABLE AS $$
    SELECT yb_xor(
        mod(x - y - z + 36893488147419103232, 18446744073709551616),
        CASE WHEN places > 0 THEN mod(shifted * power(2::numeric, places), 18446744073709551616)
            ELSE div(shifted, power(2::numeric, -places)) END)
$$;
CREATE FUNCTION yb_mix(words numeric[]) RETURNS numeric[] LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    a numeric := words[1]; b numeric := words[2]; c numeric := words[3];
    places int[] := ARRAY[-43, 9, -8, -38, 23, -5, -35, 49, -11, -12, 18, -22];
BEGIN
    FOR turn IN 0..3 LOOP
        a := yb_step(a, b, c, c, places[turn * 3 + 1]);
        b := yb_step(b, c, a, a, places[turn * 3 + 2]);
        c := yb_step(c, a, b, b, places[turn * 3 + 3]);
    END LOOP;
    RETURN ARRAY[a, b, c];
END $$;
CREATE FUNCTION yb_word(key bytea, first int, count int) RETURNS numeric LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(sum(get_byte(key, first + place) * power(256::numeric, place)), 0)
    FROM generate_series(0, least(count, length(key) - first) - 1) AS place
$$;
CREATE FUNCTION yb_code_of_bytes(key bytea) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    start numeric := 16180339887498948482; -- e08c1d668b756f82
    words numeric[] := ARRAY[start, start, 97];
    first int := 0;
    parts int[];
BEGIN
    WHILE length(key) - first >= 24 LOOP
        words := yb_mix(ARRAY[
            mod(words[1] + yb_word(key, first, 8), 18446744073709551616),
            mod(words[2] + yb_word(key, first + 8, 8), 18446744073709551616),
            mod(words[3] + yb_word(key, first + 16, 8), 18446744073709551616)]);
        first := first + 24;
    END LOOP;
    words := yb_mix(ARRAY[
        mod(words[1] + yb_word(key, first, 8), 18446744073709551616),
        mod(words[2] + yb_word(key, first + 8, 8), 18446744073709551616),
        mod(words[3] + length(key) + 256 * yb_word(key, first + 16, 7), 18446744073709551616)]);
    SELECT array_agg(mod(div(words[3], power(65536::numeric, place)), 65536)::int ORDER BY place)
        INTO parts FROM generate_series(0, 3) AS place;
    RETURN (parts[4] # (3 * parts[3]) # (5 * parts[2]) # (7 * parts[1])) & 65535;
END $$;
"""

_BYTES: Final = """
CREATE FUNCTION yb_bytes(value anyelement) RETURNS bytea LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF value IS NULL THEN RETURN ''; END IF;
    CASE pg_typeof(value)::text
        WHEN 'smallint' THEN RETURN int2send(value::text::int2);
        WHEN 'integer' THEN RETURN int4send(value::text::int4);
        WHEN 'bigint' THEN RETURN int8send(value::text::int8);
        WHEN 'boolean' THEN RETURN boolsend(value::text::bool);
        WHEN 'text' THEN RETURN convert_to(value::text, 'UTF8');
        WHEN 'character varying' THEN RETURN convert_to(value::text, 'UTF8');
        WHEN 'character' THEN RETURN convert_to(rtrim(value::text), 'UTF8');
        WHEN 'uuid' THEN RETURN uuid_send(value::text::uuid);
        WHEN 'bytea' THEN RETURN value::text::bytea;
        WHEN 'date' THEN RETURN date_send(value::text::date);
        WHEN 'timestamp without time zone' THEN RETURN timestamp_send(value::text::timestamp);
        WHEN 'timestamp with time zone' THEN RETURN timestamptz_send(value::text::timestamptz);
        WHEN 'real' THEN RETURN float4send(value::text::float4);
        WHEN 'double precision' THEN RETURN float8send(value::text::float8);
        ELSE RAISE EXCEPTION 'unsupported datatype %', pg_typeof(value) USING ERRCODE = '0A000';
    END CASE;
END $$;
CREATE FUNCTION yb_hash_code(a anyelement) RETURNS int LANGUAGE sql IMMUTABLE AS
    'SELECT yb_code_of_bytes(yb_bytes(a))';
CREATE FUNCTION yb_hash_code(a anyelement, b anycompatible) RETURNS int LANGUAGE sql IMMUTABLE AS
    'SELECT yb_code_of_bytes(yb_bytes(a) || yb_bytes(b))';
"""

_THIRD: Final = """
CREATE FUNCTION yb_hash_code(a anyelement, b anycompatible, c {kind}) RETURNS int LANGUAGE sql IMMUTABLE AS
    'SELECT yb_code_of_bytes(yb_bytes(a) || yb_bytes(b) || yb_bytes(c))';
"""

#: The text that makes `yb_hash_code` in the current schema.
HASH_CODE: Final = _WORDS + _BYTES + "".join(_THIRD.format(kind=kind) for kind in ("int4", "int8", "text", "uuid"))
