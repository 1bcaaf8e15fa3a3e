package leasehold.interop;

import java.io.File;
import java.io.IOException;
import java.io.InputStream;
import java.net.MalformedURLException;
import java.net.URL;
import java.net.URLClassLoader;
import java.nio.file.Path;
import java.util.ArrayList;
import net.bytebuddy.jar.asm.ClassReader;
import net.bytebuddy.jar.asm.ClassVisitor;
import net.bytebuddy.jar.asm.ClassWriter;
import net.bytebuddy.jar.asm.MethodVisitor;
import net.bytebuddy.jar.asm.Opcodes;

/**
 * {@link Main} on a host whose clock is ahead, by as many milliseconds as its argument says: a class loader whose Redisson asks
 * {@link #currentTimeMillis} where it asks the system otherwise. Nothing else of it is changed.
 */
public final class Ahead extends URLClassLoader {
    private static final String PROPERTY = "leasehold.ahead";
    private static final long MILLIS = Long.getLong(PROPERTY, 0);

    private Ahead(URL[] path) {
        super(path, getPlatformClassLoader());
    }

    public static void main(String[] args) throws Exception {
        // This class is loaded once more, and reads it then.
        System.setProperty(PROPERTY, args[0]);
        var loader = new Ahead(path());
        Thread.currentThread().setContextClassLoader(loader);
        var main = loader.loadClass("leasehold.interop.Main").getMethod("main", String[].class);
        main.invoke(null, (Object) new String[0]);
    }

    /** The time for Redisson. */
    public static long currentTimeMillis() {
        return System.currentTimeMillis() + MILLIS;
    }

    @Override
    protected Class<?> findClass(String name) throws ClassNotFoundException {
        if (!name.startsWith("org.redisson.")) {
            return super.findClass(name);
        }
        try (InputStream file = getResourceAsStream(name.replace('.', '/') + ".class")) {
            if (file == null) {
                throw new ClassNotFoundException(name);
            }
            byte[] changed = changed(file.readAllBytes());
            return defineClass(name, changed, 0, changed.length);
        } catch (IOException e) {
            throw new ClassNotFoundException(name, e);
        }
    }

    private static URL[] path() throws MalformedURLException {
        var path = new ArrayList<URL>();
        for (String entry : System.getProperty("java.class.path").split(File.pathSeparator)) {
            path.add(Path.of(entry).toUri().toURL());
        }
        return path.toArray(URL[]::new);
    }

    private static byte[] changed(byte[] file) {
        var reader = new ClassReader(file);
        var writer = new ClassWriter(reader, 0);
        reader.accept(new ClassVisitor(Opcodes.ASM9, writer) {
            @Override
            public MethodVisitor visitMethod(int access, String name, String type, String generic, String[] thrown) {
                return new Asking(super.visitMethod(access, name, type, generic, thrown));
            }
        }, 0);
        return writer.toByteArray();
    }

    /** A method that asks this class for the time. */
    private static final class Asking extends MethodVisitor {
        Asking(MethodVisitor method) {
            super(Opcodes.ASM9, method);
        }

        @Override
        public void visitMethodInsn(int opcode, String owner, String name, String type, boolean ofInterface) {
            boolean asks = owner.equals("java/lang/System") && name.equals("currentTimeMillis");
            super.visitMethodInsn(opcode, asks ? "leasehold/interop/Ahead" : owner, name, type, ofInterface);
        }
    }
}
